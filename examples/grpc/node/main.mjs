// QuiverMQ by gRPC from Node, without any code of QuiverMQ: topics, messages, errors, Arrow, a session.
//
//   npm install && node main.mjs 127.0.0.1:7650 ../../../proto
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { Binary, tableFromIPC, tableToIPC, tableFromArrays, vectorFromArray } from "apache-arrow";
import { promisify } from "node:util";

const [address = "127.0.0.1:7650", protos = "../../../proto"] = process.argv.slice(2);
const definition = loader.loadSync("quiver/v1/quiver.proto", {
  includeDirs: [protos],
  longs: String, // 64 bits do not fit into a number
});
const { Quiver } = grpc.loadPackageDefinition(definition).quiver.v1;
const quiver = new Quiver(address, grpc.credentials.createInsecure());
const call = (name, request) => promisify(quiver[name]).call(quiver, request);

await call("CreateTopic", { topic: "from-node", partitions: 1 });
const stored = await call("Produce", {
  topic: "from-node",
  messages: [
    { value: Buffer.from("hello"), key: Buffer.from("k"), headers: { lang: Buffer.from("js") } },
    { value: Buffer.from("world") },
  ],
});
console.log("stored at", stored.positions.map((position) => position.offset ?? "0").join(", "));

const polled = await call("Poll", { topic: "from-node", group: "node", waitMs: 5000 });
for (const delivery of polled.deliveries) {
  for (const message of delivery.messages) console.log("polled", message.value.toString());
}
const selections = polled.deliveries.map((delivery) => ({ lease: delivery.lease }));
await call("Ack", { topic: "from-node", group: "node", selections });
console.log("acknowledged");

try {
  await call("Fetch", { topic: "nowhere" });
} catch (error) {
  const code = error.metadata.get("quiver-code")[0];
  console.log("refused", grpc.status[error.code], code, error.metadata.get("quiver-retriable")[0]);
}

// Batches by an Arrow library: written by it, stored as they are, read by it.
const values = ["one", "two", "three"].map((text) => new TextEncoder().encode(text));
const table = tableFromArrays({ value: vectorFromArray(values, new Binary()) });
await call("Produce", { topic: "from-node", partition: 0, arrow: tableToIPC(table, "stream") });
const read = await call("Fetch", { topic: "from-node", offset: 2, format: "FORMAT_ARROW" });
for (const batch of read.batches) {
  for (const row of tableFromIPC(batch.stream)) {
    console.log("arrow", new TextDecoder().decode(row.value));
  }
}

// One stream: produce, messages pushed within credit, and acknowledged.
const session = quiver.Session();
session.write({ id: 1, hello: { client: "example", group: "pushed" } });
session.write({ id: 2, subscribe: { topic: "from-node", credit: 5 } });
let seen = 0;
for await (const response of session) {
  if (response.error) throw new Error(response.error.message);
  if (!response.push) continue;
  for (const delivery of response.push.deliveries) {
    seen += delivery.messages.length;
    const ack = { topic: "from-node", selections: [{ lease: delivery.lease }] };
    session.write({ id: 10 + seen, ack });
  }
  if (seen >= 5) session.end();
}
console.log("pushed", seen);
quiver.close();
