"""The built-in tools: one file per family, and the target that runs them.

They are ordinary tools of the catalog. What they need of the rest of the hub comes in as ports.
"""
