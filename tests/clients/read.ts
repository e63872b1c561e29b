// Reads a run by the client that was generated from the API's description, types checked.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Run = components["schemas"]["RunDetail"];

const [url, key, id] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });
const { data, error } = await client.GET("/api/v1/runs/{id}", { params: { path: { id } } });
if (error) throw new Error(`${error.code}: ${error.message}`);
const run: Run = data;
const task = await client.GET("/api/v1/tasks/{id}", { params: { path: { id: run.task_id } } });
if (task.error) throw new Error(task.error.message);
const missing = await client.GET("/api/v1/runs/{id}", { params: { path: { id: "999999" } } });
const first = run.attempts[0];
const lasted = run.end_time ? Date.parse(run.end_time) - Date.parse(run.created_at) : -1;
console.log([run.status, first?.attempt, lasted >= 0, task.data.schedule.kind, missing.error?.code].join("|"));
