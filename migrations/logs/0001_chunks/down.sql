DROP TABLE chunks;
