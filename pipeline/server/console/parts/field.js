// A labelled input that owns what is typed: the page may be drawn again while somebody types.
const { h } = Vue;
let made = 0;
// A text goes in pieces of so many characters, and up to so many in all: a message of a million bytes, as which it is
// escaped twice, is dropped on its way, and the server would be left with what stood there before.
const PIECE = 60_000;
const MOST = 4_000_000;
const LONG = "It is too long for this page, and nothing is done with it: use the command line or the API.";

export default {
  props: {
    kind: String, label: String, value: [String, Boolean], hint: String, error: String, warning: String, options: Array, placeholder: String,
    tz: String, name: String, required: Boolean, slow: Number, disabled: Boolean, autofocus: Boolean, list: Array,
  },
  emits: ["input"],
  data() { return { own: this.value, id: `f${++made}`, timer: null, picking: false, zones: 0, long: false }; },
  watch: { value(now) { this.own = now; }, error(now) { if (now) this.reveal(); } },
  mounted() {
    if (this.autofocus) this.$refs.input.focus();
    this.rezone = () => { this.zones++; };
    if (this.kind === "instant") document.addEventListener("dueline-zone", this.rezone);
    const kept = this.$el.closest("dialog") ? undefined : window.dueline?.typedBefore(this.label);
    if (kept !== undefined && kept !== this.own) { this.reveal(); this.typed(kept); this.tell(); } // before any button
  },
  beforeUnmount() { clearTimeout(this.timer); document.removeEventListener("dueline-zone", this.rezone); },
  methods: {
    // What is wrong, or was typed, is not left in a part that is folded up.
    reveal() {
      const around = this.$el.closest("details");
      if (around) around.open = true;
    },
    typed(value) {
      this.own = value;
      this.long = typeof value === "string" && value.length > MOST;
      clearTimeout(this.timer);
      this.timer = setTimeout(this.tell, this.slow ?? 0);
    },
    put(value) {
      clearTimeout(this.timer);
      this.timer = null;
      this.own = value;
      this.long = false;
    },
    // What was typed is told before a button that is pressed next.
    tell() {
      clearTimeout(this.timer);
      if (this.timer !== null) this.send();
      this.timer = null;
    },
    send() {
      const value = this.own;
      if (this.long) this.$emit("input", { long: true });
      else if (typeof value !== "string" || value.length <= PIECE) this.$emit("input", value);
      else {
        for (let at = 0, end; at < value.length; at = end) {
          end = Math.min(at + PIECE, value.length);
          if (end < value.length && value.codePointAt(end - 1) > 0xffff) end--; // a character of two is not parted
          this.$emit("input", { first: at === 0, text: value.slice(at, end), last: end === value.length });
        }
      }
    },
    // The browser's own picker: by mouse it opens at once, by keyboard its parts are typed or walked with arrows.
    pick(event) {
      this.picking = !this.picking;
      if (!this.picking) return;
      this.$nextTick(() => {
        this.$refs.picker.focus();
        if (event.detail > 0) try { this.$refs.picker.showPicker(); } catch { /* none: it is typed there */ }
      });
    },
    picked(event) { // a year that is being typed begins as 0002
      if (event.target.value >= "1970") this.typed(window.dueline.times.instant(event.target.value, this.tz));
    },
    // A date or a time without offset is meant in the zone that the picker has.
    left() {
      const instant = this.kind === "instant" ? window.dueline.times.instant(this.own, this.tz) : null;
      if (instant !== null) this.typed(instant);
      this.tell();
    },
    // Enter is what the main button of the question or the page is.
    entered(event) {
      if (event.key !== "Enter" || event.isComposing || this.list) return;
      event.preventDefault();
      this.left();
      const around = this.$el.closest("dialog") ?? this.$el.closest("main");
      around?.querySelector("button.main:not([disabled])")?.click();
    },
    // Described by the field's label and not named by it: that name is the text's.
    pickable(input) {
      const picker = `${this.id}p`;
      const button = h("button", {
        class: "btn", type: "button", disabled: this.disabled || undefined, "aria-expanded": String(this.picking),
        "aria-describedby": `${this.id}n`, onClick: this.pick,
      }, "Pick");
      const row = h("div", { class: "pick", key: this.zones }, [
        h("input", {
          ref: "picker", type: "datetime-local", value: window.dueline.times.wall(this.own, this.tz), "aria-label": "Date and time",
          "aria-describedby": `${this.id}n ${picker}`, onChange: this.picked, onBlur: this.tell, onKeydown: this.entered,
        }),
        h("span", { id: picker, class: "hint" }, window.dueline.times.zone(this.own, this.tz)),
      ]);
      return [h("div", { class: "pickable" }, [input, button]), ...(this.picking ? [row] : [])];
    },
  },
  render() {
    const error = this.long ? LONG : this.error;
    const told = [this.hint && `${this.id}h`, this.warning && `${this.id}w`, error && `${this.id}e`].filter(Boolean).join(" ");
    const common = {
      id: this.id, ref: "input", name: this.name, required: this.required || undefined, disabled: this.disabled || undefined,
      "aria-describedby": told || undefined, "aria-invalid": error ? "true" : undefined,
      onBlur: this.left,
    };
    const onInput = (event) => this.typed(event.target.value);
    const text = { ...common, value: this.own, placeholder: this.placeholder, onInput, spellcheck: "false", autocomplete: "off" };
    const input =
      this.kind === "check" ? h("input", { ...common, type: "checkbox", checked: this.own, onChange: (event) => this.typed(event.target.checked) })
      : this.kind === "select" ? h("select", { ...common, value: this.own, onChange: onInput }, this.options.map(([value, label]) => h("option", { value, selected: value === this.own }, label)))
      : this.kind === "area" ? h("textarea", { ...text, rows: 4 })
      : h("input", { ...text, type: "text", onKeydown: this.entered, list: this.list ? `${this.id}l` : undefined });
    const label = h("label", { for: this.id, id: `${this.id}n` }, this.label);
    const shown = this.kind === "instant" ? this.pickable(input) : [input];
    const coded = this.kind === "mono" || this.kind === "instant";
    return h("div", { class: ["field", this.kind === "check" ? "check" : "", coded ? "coded" : ""] }, [
      ...(this.kind === "check" ? [input, label] : [label, ...shown]),
      ...(this.list ? [h("datalist", { id: `${this.id}l` }, this.list.map((value) => h("option", { value })))] : []),
      ...(this.hint ? [h("span", { class: "hint", id: `${this.id}h` }, this.hint)] : []),
      ...(this.warning ? [h("span", { class: "warning", id: `${this.id}w`, role: "status" }, this.warning)] : []),
      ...(error ? [h("span", { class: "error", id: `${this.id}e`, role: "alert" }, error)] : []),
    ]);
  },
};
