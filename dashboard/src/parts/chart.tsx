/** Lines over an axis: zoom by dragging, back by a double click or the button; what the lines are under the pointer. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import { columnsOf, figures, inWords, valuesAt, type Columns, type Line } from "./chart-data";
import { colour, dark } from "./colours";
import "./chart.css";

export interface ChartProps {
  lines: readonly Line[];
  title: string;
  what?: string; // of the axis below: "step"
  log?: boolean;
  time?: boolean; // the axis below is of instants, in seconds
  logX?: boolean;
  height?: number;
  format?: (value: number) => string;
  formatX?: (value: number) => string; // of the axis below, where it is not of instants
}

export function Chart({ lines, title, what = "step", log = false, time = false, logX = false, height = 320, format = figures, formatX = String }: ChartProps) {
  const [under, setUnder] = useState<number | null>(null);
  const columns = useMemo(() => columnsOf(lines, log), [lines, log]);
  const { place, zoomed, reset } = usePlot({ lines, log, time, logX, height, format, formatX }, columns, setUnder);
  const written = time ? clock : formatX;
  return (
    <figure class="chart">
      <figcaption>
        <Legend lines={lines} columns={columns} under={under} what={time ? "" : what} written={written} format={format} />
        {zoomed && <button type="button" class="small" onClick={reset}>Reset zoom</button>}
      </figcaption>
      <div ref={place} class="chart-place" role="img" style={{ minHeight: `${height}px` }}
        aria-label={`${title}. ${lines.map((line) => inWords(line, what, written)).join(". ")}`} />
    </figure>
  );
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString("en-GB");
}

/** The plot lives as long as its lines are the same ones; new points leave it, and how far one has zoomed, as it is. */
function usePlot(drawn: Drawn, columns: Columns, under: (index: number | null) => void) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [zoomed, setZoomed] = useState(false);
  const isZoomed = useRef(false);
  const note = (now: boolean) => setZoomed((isZoomed.current = now));
  const shape = JSON.stringify(drawn.lines.map((line) => [line.label, line.colour, line.faint]));
  useEffect(() => {
    const at = place.current!;
    const made = new uPlot(options(at, drawn, under, note), columns as uPlot.AlignedData, at);
    plot.current = made;
    note(false);
    const sizes = new ResizeObserver(() => made.setSize({ width: at.clientWidth, height: drawn.height }));
    sizes.observe(at);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, drawn.log, drawn.time, drawn.logX, drawn.height, dark.value]);
  useEffect(() => plot.current?.setData(columns as uPlot.AlignedData, !isZoomed.current), [columns]);
  const reset = () => {
    plot.current?.setData(columns as uPlot.AlignedData, true);
    note(false);
  };
  return { place, zoomed, reset };
}

interface LegendProps {
  lines: readonly Line[];
  columns: Columns;
  under: number | null;
  what: string; // stands before where one is
  written: (x: number) => string;
  format: (value: number) => string;
}

function Legend({ lines, columns, under, what, written, format }: LegendProps) {
  const last = columns[0].length - 1;
  const at = under !== null && under <= last ? under : last;
  const x = columns[0][at];
  const values = valuesAt(columns, at);
  return (
    <div class="chart-legend" aria-hidden="true">
      {x !== undefined && <span class="faint">{what} {written(x)}</span>}
      {lines.map((line, index) => (
        <span key={line.label} class="chart-entry">
          <i style={{ background: `var(${line.colour})` }} />
          <span class="chart-name" title={line.label}>{line.label}</span> <b>{values[index] === null ? "–" : format(values[index]!)}</b>
        </span>
      ))}
    </div>
  );
}

type Drawn = Required<Pick<ChartProps, "lines" | "log" | "time" | "logX" | "height" | "format" | "formatX">>;

function options(at: HTMLElement, drawn: Drawn, under: (index: number | null) => void, zoom: (now: boolean) => void): uPlot.Options {
  const axis = { stroke: colour(at, "--faint"), grid: { stroke: colour(at, "--line"), width: 1 }, ticks: { stroke: colour(at, "--line"), width: 1 } };
  return {
    width: at.clientWidth || 300,
    height: drawn.height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: true }, points: { size: 6 } },
    scales: { x: { time: drawn.time, distr: drawn.logX ? 3 : 1 }, y: drawn.log ? { distr: 3 } : {} },
    axes: [below(axis, drawn), { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : drawn.format(tick))) }],
    series: [{}, ...drawn.lines.map((line) => series(at, line))],
    hooks: {
      setCursor: [(plot) => under(plot.cursor.idx ?? null)],
      setSelect: [(plot) => plot.select.width > 0 && zoom(true)],
      ready: [(plot) => plot.over.addEventListener("dblclick", () => zoom(false))],
    },
  };
}

/** Of instants the plot writes them itself. */
function below(axis: uPlot.Axis, { time, formatX }: Drawn): uPlot.Axis {
  return time || formatX === String ? axis : { ...axis, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatX(tick))) };
}

function series(at: HTMLElement, line: Line): uPlot.Series {
  const few = line.points.length < 30;
  return { label: line.label, stroke: colour(at, line.colour), width: line.faint ? 1 : 1.75, alpha: line.faint ? 0.75 : 1, points: { show: few, size: 5 } };
}
