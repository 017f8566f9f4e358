# One image for the agent's pod (`diptych serve`) and for the operator
# (`python -m diptych_operator`). What is in it besides Debian's Python: one virtual environment,
# made from uv.lock, hash by hash. No compiler, no uv, no cache.
#
#     docker build -t diptych:dev .
#
# Nothing here needs BuildKit, and every instruction works with it.
FROM python:3.13-slim AS build

# The system's certificates: behind a proxy of one's own, they are the ones that know it.
ENV UV_SYSTEM_CERTS=1 \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/diptych \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    SOURCE_DATE_EPOCH=315532800
RUN pip install --no-cache-dir --root-user-action=ignore --disable-pip-version-check uv==0.13.9

WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
# The dependencies first: a layer that stays while only our own code changes.
RUN uv sync --frozen --no-dev --extra operator --no-install-project
COPY app app
COPY operator operator
RUN uv sync --frozen --no-dev --extra operator --no-editable


FROM python:3.13-slim

COPY --from=build /opt/diptych /opt/diptych
# The bytecode is there already, and the root file system may be read-only.
ENV PATH=/opt/diptych/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LOG_FORMAT=json \
    USER=diptych \
    HOME=/tmp
# A number, so that Kubernetes can see by itself that this is not root. Any other will do as well;
# USER and HOME are set above because such a user stands in no /etc/passwd.
USER 65532:65532
WORKDIR /
EXPOSE 8000
CMD ["diptych", "serve", "--host", "0.0.0.0"]

# Last, so that a new revision leaves the layers above as they are.
ARG VERSION=0.0.0-dev
ARG REVISION=unknown
ARG CREATED=1980-01-01T00:00:00Z
LABEL org.opencontainers.image.title="diptych" \
      org.opencontainers.image.description="Runs AI agents: the agent's pod and the Kubernetes operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
