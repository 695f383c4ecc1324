/** The form of a plan: what its address says, what the service is asked, and the command that asks the same. Pure. */

import { quoted } from "../job/changes";

export interface Fields {
  model: string;
  method: string;
  batch: string;
  sequence: string;
  precision: string;
  optimizer: string;
  rank: string;
  steps: string;
  nodes: string;
  deadline: string;
  loss: string;
  checkpointing: boolean;
}

export const USUAL: Fields = {
  model: "", method: "lora", batch: "16", sequence: "2048", precision: "bf16", optimizer: "adamw", rank: "", steps: "", nodes: "", deadline: "", loss: "full", checkpointing: false,
};

export const CHOICES = {
  method: ["lora", "qlora", "full", "norm-tuning"],
  precision: ["bf16", "fp16", "fp32", "amp_bf16", "amp_fp16"],
  optimizer: ["adamw", "adamw_foreach", "adamw_fused", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "adafactor", "sgd", "sgd_momentum", "in_backward_adamw", "in_backward_adamw_8bit"],
  loss: ["full", "chunked", "fused", "recomputed"],
} as const;

/** Some of the service's table, to choose from; it knows more, and names of the Hugging Face hub. */
export const MODELS = [
  "llama-3-8b", "llama-3-70b", "llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "mistral-7b", "mixtral-8x7b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b",
  "gemma-2-9b", "gemma-3-1b", "phi-4", "phi-4-mini", "smollm2-135m", "smollm3-3b", "tinyllama-1.1b", "gpt2", "pythia-6.9b", "bert-base", "roberta-large", "vit-base",
] as const;

type TextName = Exclude<keyof Fields, "checkpointing">;
const TEXTS = ["model", "method", "batch", "sequence", "precision", "optimizer", "rank", "steps", "nodes", "deadline", "loss"] as const satisfies readonly TextName[];

export function fieldsOf(query: URLSearchParams): Fields {
  const fields = { ...USUAL, checkpointing: query.get("checkpointing") === "1" };
  for (const name of TEXTS) fields[name] = query.get(name) ?? USUAL[name];
  return fields;
}

/** What is as usual is left out of the address. */
export function inAddress(fields: Fields): Record<string, string | null> {
  const found: Record<string, string | null> = { checkpointing: fields.checkpointing ? "1" : null };
  for (const name of TEXTS) found[name] = fields[name].trim() === USUAL[name] ? null : fields[name].trim();
  return found;
}

const NUMBERS = ["batch", "sequence", "rank", "steps", "nodes"] as const;

export interface Request {
  body: Record<string, unknown>;
  wrong: Partial<Record<keyof Fields | "config", string>>;
}

export function hasAdapters(method: string): boolean {
  return method === "lora" || method === "qlora";
}

/** `config`: the text of a config.json, in place of a model's name. */
export function requestOf(fields: Fields, config: string): Request {
  const { method, precision, optimizer, loss, checkpointing } = fields;
  const request: Request = { body: { method, precision, optimizer, loss, checkpointing }, wrong: {} };
  for (const name of NUMBERS) {
    const text = fields[name].trim();
    if (name === "rank" && !hasAdapters(method)) continue;
    if (/^[1-9]\d*$/.test(text)) request.body[name] = Number(text);
    else if (text || name === "batch" || name === "sequence") request.wrong[name] = "a whole number, at least 1";
  }
  if (fields.deadline.trim()) request.body.soft_deadline = fields.deadline.trim();
  if (config.trim()) readConfig(config, request);
  else if (fields.model.trim()) request.body.model = fields.model.trim();
  return request;
}

function readConfig(text: string, request: Request): void {
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found !== "object" || found === null || Array.isArray(found)) throw new SyntaxError();
    request.body.config = found;
  } catch {
    request.wrong.config = "not a JSON object: the contents of a config.json";
  }
}

export function isWhole({ body, wrong }: Request): boolean {
  return Object.keys(wrong).length === 0 && (body.model !== undefined || body.config !== undefined);
}

export function commandOf(fields: Fields, config: string): string {
  const options: [string, string, string][] = [
    ["--method", fields.method, USUAL.method], ["--batch", fields.batch, ""], ["--seq", fields.sequence, ""], ["--precision", fields.precision, USUAL.precision],
    ["--optimizer", fields.optimizer, USUAL.optimizer], ["--loss", fields.loss, USUAL.loss], ["--rank", hasAdapters(fields.method) ? fields.rank : "", ""],
    ["--steps", fields.steps, ""], ["--nodes", fields.nodes, ""], ["--deadline", fields.deadline, ""],
  ];
  const given = options.filter(([, value, usual]) => value.trim() && value !== usual).map(([name, value]) => ` ${name} ${quoted(value.trim())}`).join("");
  const model = config.trim() ? "--config config.json" : `--model ${quoted(fields.model.trim() || "llama-3-8b")}`;
  return `allpass plan ${model}${given}${fields.checkpointing ? " --checkpointing" : ""}`;
}

/** The form with the changes that a plan proposes, as "method=qlora"; null where one is of nothing that the form has. */
export function changed(fields: Fields, changes: readonly string[]): Fields | null {
  const next = { ...fields };
  for (const change of changes) {
    const [name = "", value = ""] = change.split("=", 2);
    if (name === "checkpointing") next.checkpointing = value.toLowerCase() === "true";
    else if ((TEXTS as readonly string[]).includes(name) && value) next[name as TextName] = value;
    else return null;
  }
  return next;
}
