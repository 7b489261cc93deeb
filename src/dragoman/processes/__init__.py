"""Child processes of the hub: how they start, what they may reach, and how they end.

Knows pipes, the sandbox and resource limits, nothing of protocols. A base package, as `wire` is.
"""
