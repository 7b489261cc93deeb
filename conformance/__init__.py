"""The official MCP suites against the hub: `make conformance`, or `python -m conformance`.

Standard library only; the fixture servers and Node run in an environment of their own.
"""
