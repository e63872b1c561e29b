// Nodes, their slots and models, the instances they hang on, and how to drain one.
import { post, query } from "../api";
import { useData } from "../data";
import { t } from "../i18n";
import { Act, Empty, Figures, Head, Load, Pager, Section, State, Time } from "../parts/basics";
import { tell } from "../parts/dialog";
import { change, place } from "../route";
import type { Cluster } from "../shapes";

interface Node {
  node_id: string;
  instance_id: string;
  slots: number;
  running: number;
  load: number;
  models: string[];
  labels: Record<string, string>;
  draining: boolean;
  version: string;
  connected_at: string;
  seen_at: string;
}

function NodeRow({ node, reload }: { node: Node; reload: () => void }) {
  async function set(to: "drain" | "undrain") {
    await post(`api/v1/nodes/${encodeURIComponent(node.node_id)}/${to}`, undefined);
    reload();
  }
  async function flip() {
    const to = node.draining ? "undrain" : "drain";
    await set(to);
    tell(t(node.draining ? "nodes.undrained" : "nodes.drained", { id: node.node_id }), () => set(node.draining ? "drain" : "undrain"));
  }
  return (
    <tr>
      <td class="mono">{node.node_id}</td>
      <td><State of={node.draining ? "draining" : "ready"} /></td>
      <td class="right num">{node.running} / {node.slots}</td>
      <td class="wide clip">{node.models.join(", ")}</td>
      <td class="wide clip">{Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(" ")}</td>
      <td class="wide mono clip">{node.instance_id}</td>
      <td class="right"><Time at={node.seen_at} /></td>
      <td class="right"><Act does={flip}>{t(node.draining ? "nodes.undrain" : "nodes.drain")}</Act></td>
    </tr>
  );
}

interface Session {
  session_id: string;
  instance_id: string;
  key_id: string | null;
  connected_at: string;
}

function Sessions() {
  const after = place.value.values["session"];
  const sessions = useData<{ sessions: Session[]; next_after: string | null }>(`api/v1/sessions${query({ after, limit: 25 })}`, { follows: ["SESSION"] });
  return (
    <Section title={t("nodes.session_list")}>
      <Load from={sessions}>
        {(page) => page.sessions.length === 0 && !after ? <p class="muted">{t("nodes.no_session")}. {t("nodes.no_session_how")}</p> : (
          <>
            <table>
              <thead><tr><th>{t("nodes.session")}</th><th class="wide">{t("nodes.key")}</th><th>{t("run.instance")}</th><th class="right">{t("nodes.connected")}</th></tr></thead>
              <tbody>{page.sessions.map((one) => <tr key={one.session_id}><td class="mono clip" title={one.session_id}>{one.session_id}</td><td class="wide mono">{one.key_id ?? "–"}</td><td class="mono clip" title={one.instance_id}>{one.instance_id}</td><td class="right"><Time at={one.connected_at} /></td></tr>)}</tbody>
            </table>
            <Pager byId cursor={after} next={page.next_after} change={({ cursor }) => change({ session: cursor })} />
          </>
        )}
      </Load>
    </Section>
  );
}

function Instances({ cluster }: { cluster: Cluster }) {
  const { coordination } = cluster;
  return (
    <Section title={t("nodes.instances")} aside={t(coordination.shared ? "nodes.shared" : "nodes.alone")}>
      {!coordination.ok && <p class="problem">✕ {coordination.reason}</p>}
      <table>
        <thead><tr><th>{t("run.instance")}</th><th class="wide">{t("nodes.host")}</th><th>{t("nodes.version")}</th><th class="right">{t("nav.nodes")}</th><th class="right">{t("nodes.sessions")}</th><th class="right">{t("nodes.started")}</th></tr></thead>
        <tbody>{cluster.instances.map((one) => <tr key={one.instance_id}><td class="mono">{one.instance_id}</td><td class="wide mono">{one.host}</td><td class="num">{one.version}</td><td class="right num">{one.nodes}</td><td class="right num">{one.sessions}</td><td class="right"><Time at={one.started_at} /></td></tr>)}</tbody>
      </table>
    </Section>
  );
}

export function NodesPage() {
  const { values } = place.value;
  const nodes = useData<{ nodes: Node[]; next_after: string | null }>(`api/v1/nodes${query({ after: values["cursor"], limit: 50 })}`, { follows: ["NODE", "NODE_JOB", "SESSION"] });
  const cluster = useData<Cluster>("api/v1/cluster", { follows: ["NODE", "NODE_JOB", "SESSION"] });
  const stats = useData<{ nodes: Record<string, number> }>("api/v1/stats", { follows: ["NODE", "NODE_JOB"] });
  const counts = stats.data?.nodes;
  return (
    <>
      <Head title={t("nav.nodes")} />
      {counts && <Figures rows={[
        { name: t("nav.nodes"), value: counts["nodes"] ?? 0 },
        { name: t("nodes.sessions"), value: cluster.data?.instances.reduce((sum, one) => sum + one.sessions, 0) ?? counts["sessions_here"] ?? 0 },
        { name: t("nodes.jobs"), value: counts["jobs"] ?? 0 },
        { name: t("nodes.waiting"), value: counts["waiting"] ?? 0 },
        { name: t("nodes.inbox"), value: cluster.data?.inbox["length"] ?? 0 },
      ]} />}
      <Section title={t("nav.nodes")}>
        <Load from={nodes}>
          {(page) => page.nodes.length === 0 ? <Empty title={t("nodes.empty")}><p>{t("nodes.empty_how")}</p></Empty> : (
            <>
              <table>
                <thead><tr><th>{t("nodes.node")}</th><th>{t("queue.state")}</th><th class="right">{t("nodes.slots")}</th><th class="wide">{t("nodes.models")}</th><th class="wide">{t("nodes.labels")}</th><th class="wide">{t("run.instance")}</th><th class="right">{t("nodes.seen")}</th><th /></tr></thead>
                <tbody>{page.nodes.map((node) => <NodeRow key={node.node_id} node={node} reload={nodes.reload} />)}</tbody>
              </table>
              <Pager byId cursor={values["cursor"]} next={page.next_after} change={change} />
            </>
          )}
        </Load>
      </Section>
      <Sessions />
      {cluster.data && <Instances cluster={cluster.data} />}
    </>
  );
}
