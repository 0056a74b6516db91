// A table of rows that are data: text stays text, whatever it holds (Vue's h() makes text nodes), and a row that is
// drawn again keeps its focus, its choice and its open details.
const { h } = Vue;

function spark(runs) {
  const longest = Math.max(1, ...runs.map((run) => run.took ?? 0));
  const counts = {};
  runs.forEach((run) => { counts[run.outcome ?? "open"] = (counts[run.outcome ?? "open"] ?? 0) + 1; });
  const told = Object.entries(counts).map(([outcome, n]) => `${n} ${outcome}`).join(", ");
  const bars = runs.map((run) => {
    const title = [run.at, run.outcome ?? "open", run.said].filter(Boolean).join(" · ");
    return h("i", { class: run.kind, title, style: { height: `${4 + Math.round((14 * (run.took ?? 0)) / longest)}px` } });
  });
  return h("span", { class: "spark", role: "img", "aria-label": `last ${runs.length} runs, oldest first: ${told}` }, bars);
}

// What is too wide is cut at its end; an id in its middle, since of ids that begin alike the ends differ.
const TAIL = 10;
function cut(value) {
  const { text } = value;
  if (!(value.mono && value.clip) || text.length <= 2 * TAIL || /[\ud800-\udfff]/.test(text)) return text;
  return [h("span", { class: "begin" }, text.slice(0, -TAIL)), h("span", text.slice(-TAIL))];
}

function cell(value, act) {
  if (value === null || value === undefined || value === "") return h("span", { class: "muted" }, "–");
  if (typeof value !== "object") return String(value);
  if (value.lines) return h("div", { class: "lines" }, value.lines.map((each) => h("div", [cell(each, act)])));
  if (value.then) return h("span", [value.before, ...value.then.flatMap((at, n) => [n ? ", " : "", h("due-at", { at, how: "short" })])]);
  if (value.at) return h("due-at", { at: value.at, how: value.how ?? "day" });
  if (value.kind) return h("span", { class: `st ${value.kind}` }, value.text);
  if (value.runs) return value.runs.length ? spark(value.runs) : h("span", { class: "muted" }, "none yet");
  if (value.tags) return h("div", value.tags.map((tag) => h("span", { class: "tag", title: tag }, tag)));
  if (value.bar !== undefined)
    return h("span", { class: "nowrap" }, [
      h("span", { class: "bar", "aria-hidden": "true" }, [h("i", { style: { width: `${Math.round(100 * value.bar)}%` } })]),
      value.text,
    ]);
  if (value.acts)
    return h("div", { class: "acts" }, value.acts.map((each) =>
      h("button", { class: `btn small ${each.kind ?? ""}`, type: "button", "aria-label": each.label, onClick: () => act(each.name) }, each.text)));
  const inside = cut(value);
  const classes = [value.mono && "mono", value.clip && "clip", Array.isArray(inside) && "mid", value.muted && "muted", value.nowrap && "nowrap"].filter(Boolean).join(" ");
  const shown = value.href
    ? h("a", { href: value.href, class: classes, title: value.clip ? value.text : undefined, "aria-label": Array.isArray(inside) ? value.text : undefined }, inside)
    : h("span", { class: classes, title: value.title ?? (value.clip ? value.text : undefined) }, inside);
  if (!value.copy) return shown;
  return h("span", { class: "nowrap" }, [shown, h("button", { class: "copy", type: "button", "data-copy": value.copy, "aria-label": `copy ${value.copy}` }, "copy")]);
}
const bare = (value) => value === null || value === undefined || value === "";

export default {
  props: { data: String, caption: String, choosable: Boolean, wide: Boolean },
  emits: ["choose", "act"],
  data: () => ({ chosen: new Set() }),
  computed: {
    model() { return JSON.parse(this.data); },
    columns() { return this.model.columns; },
    rows() { return this.model.rows; },
  },
  watch: {
    rows(now) {
      if (!this.choosable) return;
      const there = new Set(now.map((row) => row.id));
      const kept = [...this.chosen].filter((id) => there.has(id));
      if (kept.length !== this.chosen.size) this.choose(kept);
    },
  },
  methods: {
    choose(ids) { this.chosen = new Set(ids); this.$emit("choose", [...this.chosen]); },
    clear() { this.choose([]); },
    flip(id, on) {
      const ids = new Set(this.chosen);
      if (on) ids.add(id); else ids.delete(id);
      this.choose(ids);
    },
    box(label, checked, some, flip) {
      return h("input", { type: "checkbox", "aria-label": label, checked, indeterminate: some, onChange: (event) => flip(event.target.checked) });
    },
    heading() {
      const own = this.columns.map((column) => h("th", { scope: "col", class: [column.kind ?? "", column.bare ? "stick" : ""] }, column.bare ? [h("span", { class: "sr" }, column.label)] : column.label));
      if (!this.choosable) return own;
      const all = this.rows.length > 0 && this.chosen.size === this.rows.length;
      const flip = (on) => this.choose(on ? this.rows.map((row) => row.id) : []);
      return [h("th", { scope: "col" }, [this.box("select all on this page", all, !all && this.chosen.size > 0, flip)]), ...own];
    },
    line(row) {
      const cells = this.columns.map((column, at) => {
        const value = row.cells[at];
        const content = [cell(value, (name) => this.$emit("act", { id: row.id, name }))].flat();
        if (column.head) return h("th", { scope: "row" }, content);
        return h("td", { class: [column.kind ?? "", column.bare ? "bare stick" : "", bare(value) ? "none" : ""], "data-name": column.label }, content);
      });
      const box = this.choosable ? [h("td", { class: "bare" }, [this.box(`select ${row.id}`, this.chosen.has(row.id), false, (on) => this.flip(row.id, on))])] : [];
      return h("tr", { key: row.id, class: this.chosen.has(row.id) ? "chosen" : "" }, [...box, ...cells]);
    },
  },
  render() {
    return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": this.caption }, [
      h("table", { class: this.wide ? "t" : "t cards" }, [
        h("caption", { class: "sr" }, this.caption),
        h("thead", [h("tr", this.heading())]),
        h("tbody", this.rows.map((row) => this.line(row))),
      ]),
    ]);
  },
};
