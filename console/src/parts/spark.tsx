// The last runs as bars: the height is the duration, the colour and the cut the outcome.
import { say } from "../i18n";
import type { Run } from "../shapes";
import { between, span } from "../time";
import { toneOf } from "./basics";

const BAR = 5;
const HEIGHT = 18;

export function Spark({ runs }: { runs: Run[] }) {
  const shown = [...runs].reverse();
  const spans = shown.map((run) => between(run.start_time, run.end_time) ?? 0);
  const most = Math.max(1, ...spans);
  const label = shown.map((run) => say("state", run.status)).join(", ");
  return (
    <svg class="spark" width={shown.length * BAR} height={HEIGHT} role="img" aria-label={label}>
      {shown.map((run, at) => {
        const tone = toneOf(run.status);
        const height = Math.max(3, (HEIGHT * (spans[at] ?? 0)) / most);
        return (
          <rect key={run.id} class={tone} x={at * BAR} y={tone === "bad" ? 0 : HEIGHT - height} width={BAR - 1.5} height={tone === "bad" ? HEIGHT : height}>
            <title>{`#${run.id} ${say("state", run.status)} ${span(spans[at] ?? 0)}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}
