// A question in front of the page: the browser's own modal dialog, which keeps the focus and hears Esc.
const { h } = Vue;

export default {
  props: { label: String, wide: Boolean },
  emits: ["dismiss"],
  mounted() { this.$el.showModal(); },
  beforeUnmount() { this.$el.close(); }, // which gives the focus back to where it was
  render() {
    const cancel = (event) => { event.preventDefault(); this.$emit("dismiss"); };
    return h("dialog", { class: ["sheet", this.wide ? "wide" : ""], "aria-label": this.label, onCancel: cancel }, this.$slots.default?.());
  },
};
