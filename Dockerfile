# The LinkPass agent for a host. It works on the host's own network:
#
#   docker build -t linkpass .
#   docker run -d --name linkpassd --network host --restart on-failure \
#     --cap-drop ALL --cap-add NET_ADMIN --cap-add NET_RAW \
#     -v /etc/linkpass:/etc/linkpass:ro -v /run/linkpass:/run/linkpass -v /var/lib/linkpass:/var/lib/linkpass linkpass
#
# /run/linkpass is the host's, so that the ledger outlives the container and `linkpassctl` finds the socket.

FROM python:3.12-slim-bookworm AS build
# Whatever compiler the base image's release has is right for it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev librdmacm-dev cmake ninja-build \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/linkpass \
    && /opt/linkpass/bin/pip install --no-cache-dir . \
    && /opt/linkpass/bin/pip uninstall -y pip

FROM python:3.12-slim-bookworm
COPY --from=build /opt/linkpass /opt/linkpass
COPY agent/linkpass.toml /usr/share/doc/linkpass/linkpass.toml
ENV PATH=/opt/linkpass/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Asks whether the agent answers, not whether the host's links are well: those are no reason to restart it.
HEALTHCHECK --interval=30s --timeout=5s CMD ["linkpassctl", "ports", "--json"]
ENTRYPOINT ["linkpassd"]
CMD ["--config", "/etc/linkpass/linkpass.toml"]
