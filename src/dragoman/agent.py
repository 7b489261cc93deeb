"""What an agent that is a Python function needs: `from dragoman.agent import Request, Ask`.

    [[agents]]
    name = "greeter"
    description = "Greets whoever it is told of."
    function = "my_agents:greet"

    # my_agents.py, in the hub's home
    def greet(message: str) -> str:
        return f"Hello, {message}!"

A function takes the text of the message, or a `Request` with all of it. It returns a text, a dict
(data), a list of blocks, or a `Reply`; `Ask` and `NeedsAuth` put a question first; `Decline` is
raised to say no. It may be async.
"""

from dragoman.agents.function import Ask, Decline, NeedsAuth, Reply, Request

__all__ = ["Ask", "Decline", "NeedsAuth", "Reply", "Request"]
