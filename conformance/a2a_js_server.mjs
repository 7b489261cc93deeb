// An agent made with the official JavaScript SDK: `node a2a_js_server.mjs PORT`. It echoes, asks
// where it is told "ask", and works until stopped on "slow".
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { AgentCard, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from "@a2a-js/sdk/server/express";
import express from "express";

const port = Number(process.argv[2]);
const base = `http://127.0.0.1:${port}`;
const card = AgentCard.fromJSON({
  name: "js",
  description: "Made with the JavaScript SDK",
  version: "1.0.0",
  supportedInterfaces: [
    { url: `${base}/rpc`, protocolBinding: "JSONRPC", protocolVersion: "1.0" },
    { url: `${base}/rest`, protocolBinding: "HTTP+JSON", protocolVersion: "1.0" },
  ],
  capabilities: { streaming: true },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "echo", name: "Echo", description: "Says it again", tags: ["echo"] }],
});

const stopped = new Set();

class Echo {
  async execute(context, bus) {
    const ids = { taskId: context.taskId, contextId: context.contextId };
    const status = (state, message) => ({ state, message, timestamp: new Date().toISOString() });
    const say = (state, words) => {
      const message = words && {
        messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text: words }], ...ids,
      };
      const update = TaskStatusUpdateEvent.fromJSON({ ...ids, status: status(state, message) });
      bus.publish(AgentEvent.statusUpdate(update));
    };
    const contents = context.userMessage.parts.map((part) => part.content);
    const texts = contents.filter((content) => content?.$case === "text");
    const words = texts.map((content) => content.value).join("");
    const task = context.task ?? Task.fromJSON({
      id: ids.taskId, contextId: ids.contextId, status: status("TASK_STATE_SUBMITTED"),
    });
    bus.publish(AgentEvent.task({ ...task, history: [...(task.history ?? []), context.userMessage] }));
    if (words === "ask") say("TASK_STATE_INPUT_REQUIRED", "What else?");
    else {
      say("TASK_STATE_WORKING");
      for (let left = 600; words === "slow" && left > 0 && !stopped.has(ids.taskId); left--)
        await sleep(100);
      if (stopped.has(ids.taskId)) say("TASK_STATE_CANCELED");
      else {
        const artifact = { artifactId: "echo", name: "echo", parts: [{ text: `echo: ${words}` }] };
        bus.publish(AgentEvent.artifactUpdate(
          TaskArtifactUpdateEvent.fromJSON({ ...ids, artifact, lastChunk: true }),
        ));
        say("TASK_STATE_COMPLETED");
      }
    }
    bus.finished();
  }

  async cancelTask(taskId) {
    stopped.add(taskId);
  }
}

const handler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Echo());
const options = { requestHandler: handler, userBuilder: UserBuilder.noAuthentication };
const app = express();
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: handler }));
app.use("/rpc", jsonRpcHandler(options));
app.use("/rest", restHandler(options));
app.listen(port, "127.0.0.1");
