-- Orders and revenue by day and country, of the days that may have changed.
select
    day,
    country,
    count(*) as orders,
    cast(sum(revenue) as decimal(18, 2)) as revenue
from facts
where day >= ${day} - interval 2 days
group by day, country
