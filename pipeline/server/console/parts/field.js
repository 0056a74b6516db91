// A labelled input that owns what is typed: the page may be drawn again while somebody types.
const { h } = Vue;
let made = 0;

export default {
  props: {
    kind: String, label: String, value: [String, Boolean], hint: String, error: String, options: Array, placeholder: String,
    name: String, required: Boolean, slow: Number, disabled: Boolean, autofocus: Boolean, list: Array,
  },
  emits: ["input"],
  data() { return { own: this.value, id: `f${++made}`, timer: null }; },
  watch: { value(now) { this.own = now; }, error(now) { if (now) this.reveal(); } },
  mounted() {
    if (this.autofocus) this.$refs.input.focus();
    const kept = this.$el.closest("dialog") ? undefined : window.dueline?.typedBefore(this.label);
    if (kept !== undefined && kept !== this.own) { this.reveal(); this.typed(kept); }
  },
  beforeUnmount() { clearTimeout(this.timer); },
  methods: {
    // What is wrong, or was typed, is not left in a part that is folded up.
    reveal() {
      const around = this.$el.closest("details");
      if (around) around.open = true;
    },
    typed(value) {
      this.own = value;
      clearTimeout(this.timer);
      this.timer = setTimeout(this.tell, this.slow ?? 0);
    },
    // What was typed is told before a button that is pressed next.
    tell() {
      clearTimeout(this.timer);
      if (this.timer !== null) this.$emit("input", this.own);
      this.timer = null;
    },
    // Enter is what the main button of the question or the page is.
    entered(event) {
      if (event.key !== "Enter" || event.isComposing || this.list) return;
      event.preventDefault();
      this.tell();
      const around = this.$el.closest("dialog") ?? this.$el.closest("main");
      around?.querySelector("button.main:not([disabled])")?.click();
    },
  },
  render() {
    const told = [this.hint && `${this.id}h`, this.error && `${this.id}e`].filter(Boolean).join(" ");
    const common = {
      id: this.id, ref: "input", name: this.name, required: this.required || undefined, disabled: this.disabled || undefined,
      "aria-describedby": told || undefined, "aria-invalid": this.error ? "true" : undefined,
      onBlur: this.tell,
    };
    const onInput = (event) => this.typed(event.target.value);
    const text = { ...common, value: this.own, placeholder: this.placeholder, onInput, spellcheck: "false", autocomplete: "off" };
    const input =
      this.kind === "check" ? h("input", { ...common, type: "checkbox", checked: this.own, onChange: (event) => this.typed(event.target.checked) })
      : this.kind === "select" ? h("select", { ...common, value: this.own, onChange: onInput }, this.options.map(([value, label]) => h("option", { value, selected: value === this.own }, label)))
      : this.kind === "area" ? h("textarea", { ...text, rows: 4 })
      : h("input", { ...text, type: "text", onKeydown: this.entered, list: this.list ? `${this.id}l` : undefined });
    const label = h("label", { for: this.id }, this.label);
    return h("div", { class: ["field", this.kind === "check" ? "check" : "", this.kind === "mono" ? "coded" : ""] }, [
      ...(this.kind === "check" ? [input, label] : [label, input]),
      ...(this.list ? [h("datalist", { id: `${this.id}l` }, this.list.map((value) => h("option", { value })))] : []),
      ...(this.hint ? [h("span", { class: "hint", id: `${this.id}h` }, this.hint)] : []),
      ...(this.error ? [h("span", { class: "error", id: `${this.id}e`, role: "alert" }, this.error)] : []),
    ]);
  },
};
