"""OAuth on both sides of the hub: `client` towards servers and agents, `logins` of people there,
`server` and `authority` towards clients. Knows neither MCP nor A2A."""
