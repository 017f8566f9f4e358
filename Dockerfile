# One image for the agent's pod (`diptych serve`) and for the operator
# (`python -m diptych_operator`). What is in it besides Debian's Python: one virtual environment,
# made from uv.lock, hash by hash, an empty one for tools, and sbom.cdx.json beside it, which names all that is in the image.
# No compiler, no uv, no cache.
#
#     docker build -t diptych:dev .
#
# Nothing here needs BuildKit, and every instruction works with it.

# By its tag, it is another one after each of Debian's updates. `python tools/pin_base.py` writes the
# digest here; do so before a release.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build

# The system's certificates: behind a proxy of one's own, they are the ones that know it.
ENV UV_SYSTEM_CERTS=1 \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/diptych \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    SOURCE_DATE_EPOCH=315532800
WORKDIR /src
COPY tools/uv.txt tools/sbom.py tools/
RUN pip install --no-cache-dir --root-user-action=ignore --disable-pip-version-check \
    --require-hashes -r tools/uv.txt
COPY pyproject.toml uv.lock README.md LICENSE ./
# The dependencies first: a layer that stays while only our own code changes. What builds our own
# wheel is locked, too, so that nothing comes in without its hash.
RUN uv sync --frozen --no-dev --extra operator --no-install-project && \
    UV_PROJECT_ENVIRONMENT=/opt/build uv sync --frozen --only-group build --no-install-project
COPY app app
COPY operator operator
RUN uv build --quiet --wheel --no-build-isolation --python /opt/build/bin/python --out-dir /wheel && \
    uv pip install --python /opt/diptych/bin/python --no-deps /wheel/*.whl && \
    uv export --quiet --frozen --no-dev --extra operator --format cyclonedx1.5 \
        --preview-features sbom-export > /tmp/lock.cdx.json && \
    /opt/diptych/bin/python tools/sbom.py --installed --debian \
        < /tmp/lock.cdx.json > /opt/diptych/sbom.cdx.json

# For images built FROM this one: what `pip install` puts there cannot change what Diptych itself
# runs with, and its programs are on PATH. Its Python finds Diptych's packages, too, and pip itself.
RUN python -m venv --without-pip /opt/tools && \
    packages=$(echo /opt/tools/lib/python3*/site-packages) && \
    echo /opt/diptych/lib/python3*/site-packages > "$packages/diptych.pth" && \
    python -c 'import pip, pathlib; print(pathlib.Path(pip.__file__).parent.parent)' > "$packages/pip.pth"


FROM ${BASE}

COPY --from=build /opt/diptych /opt/diptych
COPY --from=build --chown=65532:65532 /opt/tools /opt/tools
# The bytecode is there already, and the root file system may be read-only.
ENV PATH=/opt/tools/bin:/opt/diptych/bin:$PATH \
    PIP_PYTHON=/opt/tools/bin/python \
    PIP_NO_CACHE_DIR=1 \
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
CMD ["diptych", "serve", "--host", "::"]

# Last, so that a new revision leaves the layers above as they are.
ARG BASE
ARG VERSION=0.0.0-dev
ARG REVISION=unknown
ARG CREATED=1980-01-01T00:00:00Z
LABEL org.opencontainers.image.title="diptych" \
      org.opencontainers.image.description="Runs AI agents: the agent's pod and the Kubernetes operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
