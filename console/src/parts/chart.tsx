// A chart over time by uPlot, in the colours of the theme.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { repaint } from "../prefs";

export interface Line {
  name: string;
  /** Which colour: one of the variables of the style sheet. */
  colour: string;
  values: (number | null)[];
  kind?: "line" | "bars";
  /** Bars right (1) or left (-1) of their time, so that two stand side by side. */
  align?: -1 | 1;
}

interface Props {
  label: string;
  times: number[];
  lines: Line[];
  format?: (value: number) => string;
  max?: number;
}

const HEIGHT = 120;
/** So that a line at the top is not cut in half. */
const HEADROOM = 1.06;

/** How a time is written at ticks so many seconds apart; the first row that fits counts. */
const TIME_LABELS = [
  [86400, "{MM}-{DD}", null, null, null, null, null, null, 0],
  [60, "{HH}:{mm}", null, null, null, null, null, null, 0],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 0],
];

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

function seriesOf(line: Line, format: (value: number) => string): uPlot.Series {
  const bars = line.kind === "bars" && uPlot.paths.bars ? { paths: uPlot.paths.bars({ size: [0.35, 14], align: line.align ?? 0 }), fill: colour(line.colour), width: 0 } : {};
  return {
    label: line.name,
    stroke: colour(line.colour),
    width: 1.5,
    points: { show: false },
    spanGaps: true,
    value: (_, value) => (value === null ? "–" : format(value)),
    ...bars,
  };
}

function optionsOf({ lines, format = String, max }: Props, width: number): uPlot.Options {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width,
    height: HEIGHT,
    padding: [8, 18, 0, 0], // half a label beyond the last tick
    legend: { show: lines.length > 1, live: false },
    cursor: { points: { size: 5 }, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(max ?? 0, high || 1) * HEADROOM] } },
    axes: [
      { ...axis, size: 24, space: 70, values: TIME_LABELS as unknown as uPlot.Axis.Values },
      { ...axis, size: 58, space: 30, values: (_, splits) => splits.map((value) => format(value)) },
    ],
    series: [{ value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }, ...lines.map((line) => seriesOf(line, format))],
  };
}

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [props.times, ...props.lines.map((line) => line.values)] as uPlot.AlignedData;
  const shape = `${props.lines.map((line) => line.name).join()} ${repaint.value}`;

  useEffect(() => {
    const parent = box.current;
    if (!parent) return;
    const made = new uPlot(optionsOf(props, parent.clientWidth || 300), data, parent);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height: HEIGHT }));
    watch.observe(parent);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [props.times, props.lines]);
  return <div class="chart" ref={box} role="img" aria-label={props.label} />;
}
