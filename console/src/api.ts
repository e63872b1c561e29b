// Calls to the public API. The key lives in memory only and travels in a header: another site cannot send it.
import { signal } from "@preact/signals";

/** Where the API is: the page is at `<prefix>/ui/`, the API at `<prefix>/`. */
const root = new URL("..", document.baseURI);

export const key = signal<string | null>(null);
/** Why the sign-in page is shown; null while signed in, or while no key is needed. */
export const refused = signal<"needed" | "revoked" | null>(null);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null,
  ) {
    super(message);
  }
}

interface ErrorBody {
  code?: string;
  message?: string;
  field?: string;
}

export function headers(): Record<string, string> {
  return key.value === null ? {} : { authorization: `Bearer ${key.value}` };
}

export function address(path: string): string {
  return new URL(path, root).href;
}

export function noteRefusal(status: number): void {
  if (status === 401 && refused.value === null) {
    refused.value = key.value === null ? "needed" : "revoked";
    key.value = null;
  }
}

async function readError(response: Response): Promise<ApiError> {
  let body: ErrorBody = {};
  try {
    body = (await response.json()) as ErrorBody;
  } catch {
    // A proxy may answer with a page of its own.
  }
  const message = body.message ?? `${response.status} ${response.statusText}`;
  return new ApiError(response.status, body.code ?? "", message, body.field ?? null);
}

async function request<T>(method: string, path: string, body?: unknown, abort?: AbortSignal): Promise<T> {
  const sent: RequestInit = { method, headers: headers(), credentials: "omit", cache: "no-store" };
  if (abort) sent.signal = abort;
  if (body !== undefined) {
    sent.headers = { ...headers(), "content-type": "application/json" };
    sent.body = JSON.stringify(body);
  }
  const response = await fetch(address(path), sent);
  if (!response.ok) {
    noteRefusal(response.status);
    throw await readError(response);
  }
  return (response.status === 204 ? null : await response.json()) as T;
}

export const get = <T>(path: string, abort?: AbortSignal): Promise<T> => request<T>("GET", path, undefined, abort);
export const post = <T>(path: string, body: unknown = {}): Promise<T> => request<T>("POST", path, body);
export const put = <T>(path: string, body: unknown): Promise<T> => request<T>("PUT", path, body);
export const patch = <T>(path: string, body?: unknown): Promise<T> => request<T>("PATCH", path, body);
export const remove = <T>(path: string): Promise<T> => request<T>("DELETE", path);

/** A query string of what is set; empty values are left out. */
export function query(values: Record<string, string | number | null | undefined>): string {
  const set = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") set.set(name, String(value));
  }
  const text = set.toString();
  return text ? `?${text}` : "";
}

/** Sign in: the key is kept if the API takes it. */
export async function signIn(text: string): Promise<void> {
  key.value = text;
  try {
    await get("api/v1/keys/self");
    refused.value = null;
  } catch (error) {
    key.value = null;
    throw error;
  }
}

export function signOut(): void {
  key.value = null;
  refused.value = "needed";
}
