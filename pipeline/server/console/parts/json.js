// JSON as a tree that opens and closes. Numbers come as the text they were written in: no digit of a long one is lost.
const { h } = Vue;
const OPEN_DEPTH = 2;

// Marks that turn the direction of writing, and what cannot be seen, as the escapes that JSON has for them.
const UNSEEN = /[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
function written(text) {
  return JSON.stringify(text).replace(UNSEEN, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function comma(last) { return last ? "" : ","; }

function node([key, kind, value, size], last, depth) {
  const name = key === null ? [] : [h("span", { class: "k" }, typeof key === "number" ? `${key}: ` : `${written(key)}: `)];
  if (kind === "object" || kind === "array") {
    const [open, close] = kind === "object" ? "{}" : "[]";
    if (!value.length) return [...name, `${open}${close}${comma(last)}`];
    const count = `${size.toLocaleString("en")} ${kind === "object" ? "field" : "item"}${size === 1 ? "" : "s"}`;
    return [h("details", { open: depth < OPEN_DEPTH && value.length <= 50 }, [
      h("summary", [...name, open, h("span", { class: "muted" }, ` ${count} `)]),
      h("ul", value.map((each, at) => h("li", node(each, at === value.length - 1, depth + 1)))),
      `${close}${comma(last)}`,
    ])];
  }
  if (kind === "more") return [h("span", { class: "muted" }, value)];
  return [...name, h("span", { class: { string: "s", number: "n" }[kind] ?? "l" }, kind === "string" ? written(value) : value), comma(last)];
}

export default {
  props: { data: String, label: String },
  render() { return h("div", { class: "json", tabindex: 0, role: "region", "aria-label": this.label }, node(JSON.parse(this.data), true, 0)); },
};
