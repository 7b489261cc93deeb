"""The policies under which the hub is measured: four guardrails, and as many others as asked."""

GUARDRAILS = 4
OWN = """
@id("owners")
permit (principal in Hub::Role::"owner", action, resource);
@id("members")
permit (principal, action in Hub::Action::"any_call", resource)
when { principal.org == resource.org && context.scopes.contains("hub:invoke")
    && !resource.destructive };
@id("lists")
permit (principal, action == Hub::Action::"list", resource)
when { principal.org == resource.org };
"""
STRANGERS = """
@id("strangers")
forbid (principal, action in Hub::Action::"any_call", resource)
when { resource.trust < 2 && context.depth > 2 };
"""
TIMED_STRANGERS = """
@id("strangers")
forbid (principal, action in Hub::Action::"any_call", resource)
when { resource.trust < 2 && context.now < datetime("2020-01-01") };
"""
TEAM = """
@id("team-{number}")
permit (principal in Hub::Role::"team-{number}", action in Hub::Action::"any_call",
    resource in Hub::Server::"server-{number}");
"""


def render_policies(count: int, last: str = STRANGERS) -> str:
    """Renders the text of `count` policies, less the guardrails, which are always in force."""
    teams = (TEAM.format(number=number) for number in range(count - GUARDRAILS - 4))
    return OWN + last + "".join(teams)
