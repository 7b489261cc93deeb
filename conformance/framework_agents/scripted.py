"""What the scripted model of every framework answers."""


def answer(said: list[str]) -> str:
    """`said` are the user's messages of the conversation, the last one last."""
    return f"turn {len(said)}: {said[-1] if said else ''}"
