# The controller: Python, its few libraries, our code. No torch, no compiler, no package installer.
ARG BASE=docker.io/library/python:3.12-slim

# What builds is a stage of its own and stays there. The secrets are optional: settings for package indexes, which
# belong to the machine that builds and to no layer.
FROM ${BASE} AS build
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
COPY constraints.txt /build/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv /build/tools \
    && /build/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check -c /build/constraints.txt uv
COPY pyproject.toml images/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml operator > /build/requirements.txt

FROM build AS dependencies
ARG UV_CACHE_DIR=/root/.cache/uv
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    python3 -m venv --without-pip /opt/octavo \
    && UV_LINK_MODE=copy /build/tools/bin/uv pip install --quiet --compile-bytecode --python /opt/octavo/bin/python \
       -c /build/constraints.txt -r /build/requirements.txt
COPY images/octavo-operator /opt/octavo/bin/octavo-operator

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-operator" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/octavo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/octavo/code PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
COPY --from=dependencies /opt/octavo /opt/octavo
COPY runtime/octavo_runtime/__init__.py /opt/octavo/code/octavo_runtime/
COPY runtime/octavo_runtime/contract /opt/octavo/code/octavo_runtime/contract
COPY operator/octavo_operator /opt/octavo/code/octavo_operator
COPY crds /opt/octavo/code/octavo_operator/crds
USER 65532:65532
ENTRYPOINT ["octavo-operator"]
