"""Coded multicast over UDP datagrams."""
