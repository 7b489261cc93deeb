"""OAuth on both sides of the hub. Knows neither MCP nor A2A."""
