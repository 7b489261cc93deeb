"""Chooses the agent for a piece of work, and learns from the outcomes."""
