"""Dragoman beside its peers on this machine: `make bench`, or `python -m bench`.

Standard library only; the peers run in environments of their own.
"""
