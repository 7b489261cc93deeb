"""An echo agent of the official A2A SDK; it answers with a task.

A message that ends in "in 10" makes ten events. With a file for them, statements are counted.

usage: sdk_agent.py asyncio|uvloop PORT [DATABASE [COUNTS]]
"""

import asyncio
import sys

import uvicorn
import uvloop
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    Task,
    TaskState,
    TaskStatus,
)
from counting import Count
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

PORT = int(sys.argv[2])
DATABASE, COUNTS = [*sys.argv[3:], None, None][:2]
CARD = AgentCard(
    name="echo",
    description="Says it again",
    version="1",
    supported_interfaces=[
        AgentInterface(
            url=f"http://127.0.0.1:{PORT}/a2a", protocol_binding="JSONRPC", protocol_version="1.0"
        )
    ],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="echo", description="Says it again", tags=["echo"])],
)


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        text = context.get_user_input()
        task = Task(
            id=context.task_id,
            context_id=context.context_id,
            status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            history=[context.message],
        )
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        words, _, events = text.partition(" in ")
        for number in range(int(events or 0) - 3):  # beside the first, the artifact, the last
            said = updater.new_agent_message([Part(text=f"step {number}")])
            await updater.update_status(TaskState.TASK_STATE_WORKING, said)
            await asyncio.sleep(0)
        await updater.add_artifact([Part(text=f"E:{words}")], name="response")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...


def opened_as_the_hub_does(connection, _) -> None:
    """Not the driver's defaults, which cost more: with a write-ahead log, synced at its ends."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
    if COUNTS:
        connection.driver_connection._conn.set_trace_callback(Count(COUNTS))


async def main() -> None:
    store: TaskStore = InMemoryTaskStore()
    if DATABASE:
        engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}")
        event.listen(engine.sync_engine, "connect", opened_as_the_hub_does)
        store = database = DatabaseTaskStore(engine)
        await database.initialize()
    handler = DefaultRequestHandler(agent_executor=Echo(), task_store=store, agent_card=CARD)
    app = Starlette(routes=create_jsonrpc_routes(handler, "/a2a"))
    config = uvicorn.Config(
        app, host="127.0.0.1", port=PORT, http="httptools", access_log=False, log_level="error"
    )
    await uvicorn.Server(config).serve()


(uvloop if sys.argv[1] == "uvloop" else asyncio).run(main())
