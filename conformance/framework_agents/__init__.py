"""An agent of each framework, served by the framework's own A2A server.

`python AGENT.py PORT` in the framework's environment. The models are scripted: each answers with
the number of the user's messages in its conversation and the last of them.
"""
