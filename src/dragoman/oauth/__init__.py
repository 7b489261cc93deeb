"""OAuth: the hub as a client of authorization servers (`client`). Knows neither MCP nor A2A."""
