"""A graph of LangGraph behind its own server: a thread of it for each A2A context."""

import sys
from pathlib import Path

from langgraph.graph import END, START, MessagesState, StateGraph

sys.path.insert(0, str(Path(__file__).parent))  # the server imports this file by its path
from scripted import answer


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block.get("text", "") for block in blocks if isinstance(block, dict))


def talk(state: MessagesState) -> dict[str, object]:
    said = [text_of(one.content) for one in state["messages"] if one.type == "human"]
    return {"messages": [{"role": "assistant", "content": answer(said)}]}


building = StateGraph(MessagesState)
building.add_node("talk", talk)
building.add_edge(START, "talk")
building.add_edge("talk", END)
graph = building.compile(name="talker")

if __name__ == "__main__":
    from langgraph_api.cli import run_server

    run_server(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        reload=False,
        open_browser=False,
        disable_persistence=True,
        graphs={"talker": f"{Path(__file__).resolve()}:graph"},
    )
