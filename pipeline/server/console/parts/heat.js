// A map of buckets: rows of cells, each a link to its jobs. One stop for the Tab key; the arrows walk.
const { h } = Vue;

export default {
  props: { data: String, caption: String },
  data: () => ({ at: null }),
  computed: {
    model() { return JSON.parse(this.data); },
    heads() { return this.model.heads; },
    rows() { return this.model.rows; },
  },
  methods: {
    walk(event, row, column) {
      const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      for (let [r, c] = [row + step[0], column + step[1]]; this.rows[r]?.cells[c]; r += step[0], c += step[1]) {
        if (!this.rows[r].cells[c].href) continue;
        this.at = [r, c];
        this.$nextTick(() => this.$el.querySelector(`[data-place="${r}-${c}"]`)?.focus());
        return;
      }
    },
    first() {
      for (const [r, row] of this.rows.entries()) for (const [c, each] of row.cells.entries()) if (each.href) return [r, c];
      return null;
    },
    cell(each, r, c, stop) {
      const place = `${r}-${c}`;
      const inner = each.href
        ? h("a", { href: each.href, title: each.title, "aria-label": each.title, class: each.kind, "data-place": place,
                   tabindex: stop === place ? 0 : -1, onKeydown: (event) => this.walk(event, r, c), onFocus: () => { this.at = [r, c]; } }, each.text)
        : h("span", { title: each.title }, "0");
      return h("td", { class: each.now ? "now" : "" }, [inner]);
    },
  },
  render() {
    const held = this.at && this.rows[this.at[0]]?.cells[this.at[1]]?.href ? this.at : this.first();
    const stop = held ? held.join("-") : "";
    return h("table", { class: "heat" }, [
      h("caption", { class: "sr" }, this.caption),
      h("thead", [h("tr", [h("th", { class: "row", scope: "col" }, this.heads[0]), ...this.heads.slice(1).map((head) => h("th", { scope: "col" }, head))])]),
      h("tbody", this.rows.map((row, r) => h("tr", [
        h("th", { class: "row", scope: "row" }, [h("due-at", { at: row.at, how: row.how })]),
        ...row.cells.map((each, c) => this.cell(each, r, c, stop)),
      ]))),
    ]);
  },
};
