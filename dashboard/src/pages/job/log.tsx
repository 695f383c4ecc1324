import { useEffect, useMemo, useState } from "preact/hooks";

import { bytes, count, plural } from "../../format";
import { isOver, type Job } from "../../api/jobs";
import { announce } from "../../parts/announcer";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { VirtualRows } from "../../parts/virtual-rows";
import { route } from "../../route";
import type { TabProps } from ".";
import type { LogLine } from "./log-lines";
import { logReader, wholeLog, type LogState } from "./log-reader";
import { LogSearch } from "./log-search";
import "./log.css";

const LINE_PX = 20;

export function Log({ job }: TabProps) {
  const [from, setFrom] = useState<{ position: string; text: string } | null>(null);
  const [line, setLine] = useState<string | null>(null);
  const [follow, setFollow] = useState(!isOver(job) || job.status === "failed"); // its end says why
  const reader = useMemo(() => logReader(job.id, from?.position ?? null), [job.id, from]);
  useEffect(() => reader.stop, [reader]);
  const state = reader.state.value;
  const open = (number: number, position: string, text: string) => {
    setFollow(false);
    const kept = state.lines.lines;
    if (!from && kept.length && number >= kept[0]!.number && number <= kept.at(-1)!.number) setLine(String(number));
    else setFrom({ position, text });
  };
  return (
    <div class="log">
      <LogSearch job={job} onOpen={open} />
      <div class="log-bar">
        <Said state={state} part={from !== null} />
        <NextError lines={state.lines.lines} after={Number(line ?? 0)} onFound={(number) => { setFollow(false); setLine(String(number)); }} />
        {from && <button type="button" class="small" onClick={() => setFrom(null)}>From the beginning</button>}
        {state.state === "held" && <button type="button" class="small" onClick={reader.readOn}>Read on to the end</button>}
        <label class="check"><input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> Follow</label>
        <Download job={job} />
      </div>
      <Lines state={state} job={job} follow={follow} numbered={from === null} show={line ?? found(state, from?.text)} onAway={() => setFollow(false)} />
      <p><Command text={`allpass logs ${isOver(job) ? "" : "-f "}${job.id}`} /></p>
    </div>
  );
}

/** From one error to the next, and round again. */
function NextError({ lines, after, onFound }: { lines: readonly LogLine[]; after: number; onFound: (number: number) => void }) {
  const errors = useMemo(() => lines.filter((line, at) => line.severity === "bad" && lines[at - 1]?.severity !== "bad"), [lines]);
  const next = errors.find((line) => line.number > after) ?? errors[0];
  if (!next) return null;
  return <button type="button" class="small bad" onClick={() => onFound(next.number)}>{plural(errors.length, "error")}: next</button>;
}

/** The line that was looked for, in a part of the log whose numbers are not known. */
function found(state: LogState, text: string | undefined): string | null {
  if (text === undefined) return null;
  const line = state.lines.lines.find((one) => one.text.includes(text.trim()));
  return line ? String(line.number) : null;
}

interface LinesProps {
  state: LogState;
  job: Job;
  follow: boolean;
  numbered: boolean;
  show: string | null;
  onAway: () => void;
}

function Lines({ state, job, follow, numbered, show, onAway }: LinesProps) {
  const { lines } = state.lines;
  if (!lines.length && state.error) return <Failure error={state.error} />;
  if (!lines.length && state.state === "reading") return <Loading what="Reading the log" />;
  if (!lines.length) return <Empty title={isOver(job) ? "It wrote nothing." : "Nothing is written yet."}><p>What its code prints stands here within seconds.</p></Empty>;
  const q = route.value.query.get("q") ?? "";
  return (
    <VirtualRows items={lines} keyOf={numberOf} rowHeight={LINE_PX} class="log-lines" follow={follow} show={show}
      row={(line) => <Line key={line.number} line={line} numbered={numbered} q={q} shown={String(line.number) === show} />}
      box={{
        role: "log", "aria-live": "off", "aria-label": "Log", tabIndex: 0,
        onWheel: (event: WheelEvent) => event.deltaY < 0 && onAway(),
        onTouchMove: onAway,
        onKeyDown: (event: KeyboardEvent) => /^(ArrowUp|PageUp|Home)$/.test(event.key) && onAway(),
      }} />
  );
}

function numberOf(line: LogLine): string {
  return String(line.number);
}

function Line({ line, numbered, q, shown }: { line: LogLine; numbered: boolean; q: string; shown: boolean }) {
  return (
    <div class={`log-line ${line.severity} ${shown ? "shown" : ""}`}>
      <span class="log-number">{numbered ? line.number : ""}</span><Marked text={line.text} q={q} />
    </div>
  );
}

/** What was searched for stands out. */
export function Marked({ text, q }: { text: string; q: string }) {
  const at = q ? text.toLowerCase().indexOf(q.toLowerCase()) : -1;
  if (at < 0) return <span>{text}</span>;
  return <span>{text.slice(0, at)}<mark>{text.slice(at, at + q.length)}</mark>{text.slice(at + q.length)}</span>;
}

const WORDS: Record<LogState["state"], string> = { reading: "reading …", follows: "follows what is written", held: "there is more", complete: "complete", failed: "" };

function Said({ state, part }: { state: LogState; part: boolean }) {
  const { lines, dropped } = state.lines;
  return (
    <span class="faint" role="status">
      {part ? "A part of the log" : count(state.lines.next - 1) + " lines"}, {bytes(state.characters)}, {WORDS[state.state]}
      {dropped > 0 && `; the newest ${count(lines.length)} are kept here`}
      {state.error && lines.length > 0 && <span class="wait"> The connection is lost: trying again.</span>}
    </span>
  );
}

function Download({ job }: { job: Job }) {
  const [busy, setBusy] = useState(false);
  const load = async () => {
    setBusy(true);
    try {
      const text = await wholeLog(job.id);
      if (text === null) announce(`It is too long for a browser: allpass logs ${job.id} > log.txt`);
      else save(text, `${job.id}.log`);
    } catch (error) {
      announce((error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return <button type="button" class="small" disabled={busy} onClick={() => void load()}>{busy ? "Reading all of it …" : "Download"}</button>;
}

function save(text: string, name: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
