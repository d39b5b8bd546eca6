CREATE MATERIALIZED VIEW by_country AS
SELECT country, count(*) AS orders, sum(cents) AS cents
FROM orders_by_now
GROUP BY country
