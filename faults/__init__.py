"""Experiments that break the machine around a real hub, attack it, kill it, and judge the hub.

`make faults` runs the long versions and writes docs/reliability.md; tests/faults runs short ones.
"""
