/** A fine-tuning by the built-in recipe, as the form has it: what the service is asked, and the command that submits the same. Pure. */

import { dollars, quoted, seconds } from "../job/changes";
import { hasAdapters, type Fields } from "./request";

export interface RowProblem {
  where: string;
  message: string;
  hint: string | null;
}

/** What a file was found to hold: sdk/allpass/wire/finetunes.py is the source. */
export interface DataReport {
  sha256: string | null;
  name: string;
  size_bytes: number;
  rows: number;
  shape: string | null;
  labels: number;
  characters: number;
  ignored: string[];
  problems: RowProblem[];
  problem_count: number;
}

export interface Wishes {
  hub: string; // the model, where the plan has another name for it
  epochs: string;
  held_out: string;
  name: string;
  deadline: string;
  max_cost: string;
  max_duration: string;
}

export type Wrong = Partial<Record<keyof Wishes | keyof Fields | "data" | "config", string>>;

export const NO_WISHES: Wishes = { hub: "", epochs: "", held_out: "", name: "", deadline: "", max_cost: "", max_duration: "" };

const PRECISIONS: Record<string, string> = { bf16: "bf16", fp16: "fp16", fp32: "fp32", amp_bf16: "autocast" };
const METHODS = ["lora", "qlora", "full"];
const OPTIMIZERS = ["adamw", "adamw_8bit", "paged_adamw_8bit"];
const CHARACTERS_OF_A_TOKEN = 4;

/** Whether the machines could fetch it by this name. */
export function isOfHub(model: string): boolean {
  return /^[\w.-]+\/[\w.-]+$/.test(model) || model.startsWith("/");
}

export function modelOf(fields: Fields, config: string, wishes: Wishes): string {
  return !config.trim() && isOfHub(fields.model.trim()) ? fields.model.trim() : wishes.hub.trim();
}

/** What the recipe cannot do of what was planned, and what is no number. */
export function wrongOf(fields: Fields, config: string, wishes: Wishes): Wrong {
  const wrong: Wrong = {};
  if (!isOfHub(modelOf(fields, config, wishes))) wrong.hub = "as the hub calls it: organisation/model";
  if (!METHODS.includes(fields.method)) wrong.method = `the recipe has ${METHODS.join(", ")}`;
  if (!(fields.precision in PRECISIONS)) wrong.precision = `the recipe has ${Object.keys(PRECISIONS).join(", ")}`;
  else if (fields.method === "full" && fields.precision === "bf16") wrong.precision = "too coarse for a full fine-tuning: plan it with amp_bf16";
  if (!OPTIMIZERS.includes(fields.optimizer)) wrong.optimizer = `the recipe has ${OPTIMIZERS.join(", ")}`;
  if (wishes.epochs.trim() && !(Number(wishes.epochs) > 0)) wrong.epochs = "a number above 0";
  if (wishes.epochs.trim() && fields.steps.trim()) wrong.epochs = "steps are planned: leave one of the two out";
  if (wishes.held_out.trim() && !(Number(wishes.held_out) >= 0 && Number(wishes.held_out) < 1)) wrong.held_out = "a share from 0 to below 1";
  if (wishes.max_cost.trim() && dollars(wishes.max_cost) === null) wrong.max_cost = "dollars above 0";
  if (wishes.max_duration.trim() && seconds(wishes.max_duration) === null) wrong.max_duration = "like 8h, 90m or 1d12h";
  return wrong;
}

export function bodyOf(fields: Fields, config: string, wishes: Wishes, data: DataReport): Record<string, unknown> {
  const max_cost_usd = dollars(wishes.max_cost);
  const max_duration_s = wishes.max_duration.trim() ? seconds(wishes.max_duration) : null;
  const caps = { ...(max_cost_usd !== null && { max_cost_usd }), ...(max_duration_s !== null && { max_duration_s }) };
  const template = { ...(Object.keys(caps).length && { caps }), ...(isSeveral(fields) && { nodes: Number(fields.nodes) }) };
  return {
    data: { sha256: data.sha256, name: data.name },
    model: modelOf(fields, config, wishes),
    method: fields.method,
    settings: settingsOf(fields, wishes),
    ...(config.trim() && { config: JSON.parse(config) as unknown }),
    ...(wishes.held_out.trim() && { held_out: Number(wishes.held_out) }),
    ...(Object.keys(template).length && { template }),
    ...(wishes.name.trim() && { name: wishes.name.trim() }),
    ...(wishes.deadline.trim() && { soft_deadline: wishes.deadline.trim() }),
  };
}

function isSeveral(fields: Fields): boolean {
  return Number(fields.nodes) > 1;
}

/** What is as usual is left to the recipe: then a GPU without bf16 trains in fp16. */
function settingsOf(fields: Fields, wishes: Wishes): Record<string, unknown> {
  const { method, precision, optimizer, steps, rank, checkpointing } = fields;
  return {
    batch_size: Number(fields.batch),
    sequence_length: Number(fields.sequence),
    ...(steps.trim() && { steps: Number(steps) }),
    ...(wishes.epochs.trim() && { epochs: Number(wishes.epochs) }),
    ...(hasAdapters(method) && rank.trim() && { lora_rank: Number(rank) }),
    ...(precision !== "bf16" && { precision: PRECISIONS[precision] }),
    ...(optimizer !== "adamw" && { optimizer }),
    ...(checkpointing && { checkpointing: true }),
  };
}

export function commandOf(fields: Fields, config: string, wishes: Wishes, file: string): string {
  const precision = fields.precision === "bf16" ? "" : PRECISIONS[fields.precision] ?? "";
  const options: [string, string, string][] = [
    ["--method", fields.method, "lora"], ["--batch", fields.batch, ""], ["--seq", fields.sequence, ""], ["--steps", fields.steps, ""], ["--nodes", isSeveral(fields) ? fields.nodes : "", ""], ["--epochs", wishes.epochs, ""],
    ["--rank", hasAdapters(fields.method) ? fields.rank : "", ""], ["--precision", precision, ""], ["--optimizer", fields.optimizer, "adamw"], ["--held-out", wishes.held_out, ""],
    ["--set", fields.checkpointing ? "checkpointing=true" : "", ""], ["--name", wishes.name, ""], ["--deadline", wishes.deadline, ""],
    ["--max-cost", wishes.max_cost.replace(/^\s*\$/, ""), ""], ["--max-duration", wishes.max_duration, ""],
  ];
  const given = options.filter(([, value, usual]) => value.trim() && value.trim() !== usual).map(([name, value]) => ` ${name} ${quoted(value.trim())}`).join("");
  return `allpass finetune ${quoted(modelOf(fields, config, wishes) || "ORGANISATION/MODEL")} ${quoted(file || "rows.jsonl")}${given}`;
}

/** Which field of the form the service speaks of: "settings.batch_size" is the batch. */
export function fieldAbout(param: string | null): keyof Wrong | null {
  const names: Record<string, keyof Wrong> = {
    data: "data", model: "model", config: "config", method: "method", held_out: "held_out", name: "name", soft_deadline: "deadline",
    "settings.batch_size": "batch", "settings.sequence_length": "sequence", "settings.steps": "steps", "settings.epochs": "epochs", "settings.lora_rank": "rank",
    "settings.precision": "precision", "settings.optimizer": "optimizer", "template.caps.max_cost_usd": "max_cost", "template.caps.max_duration_s": "max_duration", nodes: "nodes", "template.nodes": "nodes",
  };
  if (param === null) return null;
  return names[param] ?? names[param.split(".")[0]!] ?? null;
}

export function tokensOf(report: Pick<DataReport, "characters">): number {
  return Math.round(report.characters / CHARACTERS_OF_A_TOKEN);
}
