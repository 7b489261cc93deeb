"""The public names for function agents: `from dragoman.agent import Request, Ask`.

    [[agents]]
    name = "greeter"
    description = "Greets a person by name."
    function = "my_agents:greet"

    # my_agents.py, in the hub's home
    def greet(message: str) -> str:
        return f"Hello, {message}!"

A function takes the text of the message, or a `Request` with all of it, and may be async. It
returns text, a dict (data), a list of blocks, or a `Reply`; `Ask` and `NeedsAuth` ask a question
first. It raises `Decline` to refuse.
"""

from dragoman.agents.messages import Ask, Decline, NeedsAuth, Reply, Request

__all__ = ["Ask", "Decline", "NeedsAuth", "Reply", "Request"]
