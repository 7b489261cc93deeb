"""Workflows: definitions in YAML, and their durable runs. Knows no wire protocol; each step that
acts is one call of the hub."""
