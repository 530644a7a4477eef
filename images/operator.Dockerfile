# The controller: Python, its few libraries, our code. No torch, no compiler, no package installer.
ARG BASE=docker.io/library/python:3.12-slim

# Edits of pyproject.toml that change no requirement end here: the next stage sees the list alone.
FROM ${BASE} AS requirements
COPY pyproject.toml images/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml operator > /requirements.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-operator" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/octavo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/octavo/code PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
ENTRYPOINT ["octavo-operator"]
COPY constraints.txt /opt/octavo/
COPY --from=requirements /requirements.txt /opt/octavo/
ARG UV_CACHE_DIR=/root/.cache/uv
# The secrets are optional: settings for package indexes, which belong to the machine that builds and to no layer. The
# installer comes and goes within the step.
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy \
    && python3 -m venv /tmp/installer \
    && /tmp/installer/bin/pip install --quiet --no-cache-dir -c /opt/octavo/constraints.txt uv \
    && python3 -m venv --without-pip /opt/octavo \
    && /tmp/installer/bin/uv pip install --quiet --compile-bytecode --python /opt/octavo/bin/python \
        -c /opt/octavo/constraints.txt -r /opt/octavo/requirements.txt \
    && rm -rf /tmp/installer
USER 65532:65532
COPY images/octavo-operator /opt/octavo/bin/octavo-operator
COPY runtime/octavo_runtime/__init__.py /opt/octavo/code/octavo_runtime/
COPY runtime/octavo_runtime/contract /opt/octavo/code/octavo_runtime/contract
COPY operator/octavo_operator /opt/octavo/code/octavo_operator
COPY crds /opt/octavo/code/octavo_operator/crds
