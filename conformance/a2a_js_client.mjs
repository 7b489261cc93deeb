// The official JavaScript SDK as a client of the hub: `node a2a_js_client.mjs URL`; a line of JSON a
// thing tried, over each of its transports.
import { randomUUID } from "node:crypto";
import {
  ListTasksRequest,
  SendMessageRequest,
  StreamResponse,
  Task,
  TaskPushNotificationConfig,
} from "@a2a-js/sdk";
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { GrpcTransportFactory } from "@a2a-js/sdk/client/grpc";

const SECONDS = 15;
const url = process.argv[2];

async function trying(name, work) {
  let problem = null;
  let timer;
  try {
    const late = new Promise((_, no) => {
      timer = setTimeout(() => no(new Error(`no end after ${SECONDS} s`)), SECONDS * 1000);
    });
    await Promise.race([work(), late]);
  } catch (error) {
    problem = `${error?.name}: ${String(error?.message).split("\n")[0].slice(0, 300)}`;
  } finally {
    clearTimeout(timer);
  }
  console.log(JSON.stringify({ name, problem }));
}

function expect(good, came) {
  if (!good) throw new Error(`came ${JSON.stringify(came)?.slice(0, 250)}`);
}

const request = (words, ids = {}, configuration = {}) =>
  SendMessageRequest.fromJSON({
    message: { messageId: randomUUID(), role: "ROLE_USER", parts: [{ text: words }], ...ids },
    configuration,
  });

const isTask = (result) => result.status !== undefined;
const stateOf = (task) => Task.toJSON(task).status.state;
const textOf = (task) =>
  (Task.toJSON(task).artifacts ?? []).flatMap((one) => one.parts).map((part) => part.text ?? "").join("");

async function use(name, factory) {
  let client, done, waiting;
  await trying(`${name}: card`, async () => {
    client = await new ClientFactory({ transports: [factory] }).createFromUrl(url);
  });
  if (client === undefined) return;
  await trying(`${name}: send`, async () => {
    done = await client.sendMessage(request("hello"));
    expect(isTask(done) && stateOf(done) === "TASK_STATE_COMPLETED", done);
    expect(textOf(done) === "echo: hello", textOf(done));
  });
  await trying(`${name}: get`, async () => {
    const again = await client.getTask({ id: done.id, tenant: "" });
    expect(again.id === done.id && textOf(again) === "echo: hello", again);
  });
  await trying(`${name}: list`, async () => {
    const found = await client.listTasks(ListTasksRequest.fromJSON({ contextId: done.contextId }));
    expect(found.tasks.some((task) => task.id === done.id), found);
  });
  await trying(`${name}: a message in reply`, async () => {
    const said = await client.sendMessage(request("tck-message-response"));
    expect(!isTask(said) && said.parts.length === 1, said);
  });
  await trying(`${name}: stream`, async () => {
    const seen = [];
    for await (const event of client.sendMessageStream(request("tck-stream-basic")))
      seen.push(StreamResponse.toJSON(event));
    expect(seen[0].task !== undefined && seen.length >= 4, seen);
    expect(seen.some((event) => event.artifactUpdate), seen);
    expect(seen.at(-1).statusUpdate?.status.state === "TASK_STATE_COMPLETED", seen.at(-1));
  });
  await trying(`${name}: asked and answered`, async () => {
    const asked = await client.sendMessage(request("tck-multi-turn"));
    expect(stateOf(asked) === "TASK_STATE_INPUT_REQUIRED", stateOf(asked));
    const end = await client.sendMessage(request("done", { taskId: asked.id }));
    expect(end.id === asked.id && stateOf(end) === "TASK_STATE_COMPLETED", stateOf(end));
  });
  await trying(`${name}: push configuration`, async () => {
    waiting = await client.sendMessage(request("tck-cancel", {}, { returnImmediately: true }));
    const config = { taskId: waiting.id, id: "hook", url: "http://127.0.0.1:9/hook", token: "t" };
    const made = await client.createTaskPushNotificationConfig(
      TaskPushNotificationConfig.fromJSON(config),
    );
    expect(made.url === config.url, made);
    const which = { taskId: waiting.id, id: made.id, tenant: "" };
    const kept = await client.getTaskPushNotificationConfig(which);
    expect(kept.url === config.url, kept);
    await client.deleteTaskPushNotificationConfig(which);
  });
  await trying(`${name}: subscribe, and cancel is seen there`, async () => {
    const stream = client.resubscribeTask({ id: waiting.id, tenant: "" });
    const first = StreamResponse.toJSON((await stream.next()).value);
    expect(first.task?.id === waiting.id, first);
    const stopped = await client.cancelTask({ id: waiting.id, tenant: "", metadata: undefined });
    expect(stateOf(stopped) === "TASK_STATE_CANCELED", stateOf(stopped));
    let last;
    for await (const event of stream) last = StreamResponse.toJSON(event);
    expect(last?.statusUpdate?.status.state === "TASK_STATE_CANCELED", last);
  });
  await trying(`${name}: an unknown task is an error`, async () => {
    let came;
    try {
      came = await client.getTask({ id: randomUUID(), tenant: "" });
    } catch (error) {
      expect(/TaskNotFound/.test(`${error.name} ${error.constructor.name}`), `${error}`);
      return;
    }
    expect(false, came);
  });
}

await use("JSON-RPC", new JsonRpcTransportFactory());
await use("HTTP+JSON", new RestTransportFactory());
await use("gRPC", new GrpcTransportFactory());
process.exit(0); // channels it does not close would keep it
