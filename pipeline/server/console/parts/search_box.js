// A search that completes what is typed: the filters by name, and the values that are known of them. All of it can be
// reached by keyboard, as ARIA's combobox says: arrows choose, Enter takes, Esc closes. The form around it sends it.
const { h } = Vue;
const MOST = 10;
let made = 0;

function quoted(value) { return /[\s"\\]/.test(value) ? `"${value.replace(/[\\"]/g, "\\$&")}"` : value; }
function matching(values, part) {
  const wanted = part.toLowerCase();
  const begins = values.filter((each) => each.toLowerCase().startsWith(wanted));
  return [...begins, ...values.filter((each) => !begins.includes(each) && each.toLowerCase().includes(wanted))];
}

export default {
  props: { value: String, label: String, placeholder: String, filters: String, known: String },
  emits: ["wanted"],
  data() { return { own: this.value, caret: 0, open: false, at: -1, asked: false, id: `s${++made}` }; },
  computed: {
    before() { return this.own.slice(0, this.caret); },
    word() { return /\S*$/.exec(this.before)[0]; },
    values() { return JSON.parse(this.known); },
    offers() {
      if ((this.before.match(/"/g) ?? []).length % 2) return []; // within quotes
      const colon = this.word.indexOf(":");
      return (colon < 0 ? this.byName() : this.byValue(colon)).slice(0, MOST);
    },
    shown() { return this.open && this.offers.length > 0; },
  },
  methods: {
    byName() {
      const named = JSON.parse(this.filters).filter(([name]) => name.startsWith(this.word)).map(([text, told]) => ({ text, told, take: text }));
      if (this.word.length < 2) return named;
      const values = Object.entries(this.values).flatMap(([name, each]) => matching(each, this.word).map((value) => `${name}:${quoted(value)}`));
      return [...named, ...values.map((text) => ({ text, take: `${text} ` }))];
    },
    byValue(colon) {
      const name = this.word.slice(0, colon);
      const from = Math.max(colon, name === "status" ? this.word.lastIndexOf(",") : -1) + 1;
      return matching(this.values[name] ?? [], this.word.slice(from)).map((text) => ({ text, take: `${this.word.slice(0, from)}${quoted(text)} ` }));
    },
    ask() {
      if (!this.asked) this.$emit("wanted");
      this.asked = true;
    },
    typed(event) {
      this.own = event.target.value;
      this.caret = event.target.selectionStart ?? this.own.length;
      this.open = this.word !== "";
      this.at = -1;
    },
    take(offer) {
      const begun = this.before.slice(0, this.caret - this.word.length) + offer.take;
      this.own = begun + this.own.slice(this.caret).trimStart();
      this.caret = begun.length;
      this.at = -1;
      this.open = !offer.take.endsWith(" ");
      this.$nextTick(() => { this.$refs.input.focus(); this.$refs.input.setSelectionRange(this.caret, this.caret); });
    },
    pressed(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        if (!this.shown) { this.caret = event.target.selectionStart ?? this.own.length; this.open = true; this.at = -1; }
        const count = this.offers.length;
        if (count) this.at = this.at < 0 ? (step > 0 ? 0 : count - 1) : (this.at + step + count) % count;
      } else if (event.key === "Enter" && this.shown && this.at >= 0) {
        event.preventDefault();
        this.take(this.offers[this.at]);
      } else if (event.key === "Escape" && this.shown) {
        event.preventDefault(); // which would empty it
        this.open = false;
      }
    },
  },
  render() {
    const list = `${this.id}l`;
    const input = h("input", {
      ref: "input", type: "search", name: "q", role: "combobox", value: this.own, placeholder: this.placeholder, "aria-label": this.label,
      "aria-autocomplete": "list", "aria-expanded": String(this.shown), "aria-controls": list,
      "aria-activedescendant": this.shown && this.at >= 0 ? `${list}${this.at}` : undefined, autocomplete: "off", spellcheck: "false",
      onInput: this.typed, onKeydown: this.pressed, onFocus: this.ask, onBlur: () => { this.open = false; },
    });
    const option = (offer, at) => h("li", {
      id: `${list}${at}`, role: "option", "aria-selected": String(at === this.at), class: at === this.at ? "at" : "",
      onMousedown: (event) => { event.preventDefault(); this.take(offer); },
    }, [h("span", { class: "mono" }, offer.text), ...(offer.told ? [h("span", { class: "muted" }, offer.told)] : [])]);
    return h("div", { class: "combo" }, [
      input,
      ...(this.shown ? [h("ul", { id: list, role: "listbox", "aria-label": "Completions" }, this.offers.map(option))] : []),
    ]);
  },
};
