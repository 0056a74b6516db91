# Every role of Dueline in one image: the role is the command. See docker-compose.yml.
FROM python:3.13.9-slim-bookworm AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
ENV UV_PROJECT_ENVIRONMENT=/opt/dueline UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
# Dependencies alone first: they change less often than the code.
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-default-groups --extra server --no-install-project
COPY README.md LICENSE CHANGELOG.md ./
COPY schemas schemas
COPY examples examples
COPY pipeline pipeline
RUN uv sync --frozen --no-default-groups --extra server --no-editable

FROM python:3.13.9-slim-bookworm
COPY --from=build /opt/dueline /opt/dueline
# The state directory belongs to the process alone: it holds the index and the identity of the instance.
RUN useradd --system --uid 10001 --home-dir /var/lib/dueline dueline \
    && install --directory --owner=dueline --group=dueline --mode=0700 /var/lib/dueline
ENV PATH=/opt/dueline/bin:$PATH DUELINE_STATE_DIR=/var/lib/dueline PYTHONUNBUFFERED=1
USER dueline
VOLUME /var/lib/dueline
ENTRYPOINT ["dueline"]
