"""The hub as an OAuth client: discovery, registration, grants, and the life of tokens."""
