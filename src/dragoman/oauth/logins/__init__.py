"""Logins at servers and agents: whose credential a request has, links for people, their pages."""
