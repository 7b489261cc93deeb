"""The hub as a resource server: verifies access tokens of identity providers."""
