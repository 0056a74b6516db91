"""One mail in two seconds. Runs while `dueline dev --app quickstart:app` does."""

from pipeline import Dueline

app = Dueline()


@app.job("email.send", max_attempts=5)
def send(ctx, to, subject="Your invoice"):
    print(f"to {to}: {subject} ({ctx.idempotency_key}, run {ctx.run})", flush=True)
    return {"sent": to}


if __name__ == "__main__":
    mail = {"to": "ada@example.com", "subject": "Invoice 55 is unpaid"}
    job = app.schedule("email.send", mail, in_="2s", idempotency_key="dunning_invoice_55")
    print(f"{job.id} is due at {job.due_at}")
