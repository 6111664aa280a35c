-- Revenue by day and country. ${least} is a parameter of the pipeline, bound as a value.
select
    orders.day,
    customers.country,
    count(*) as orders,
    cast(sum(orders.amount) as decimal(18, 2)) as revenue
from orders
join customers on orders.customer_id = customers.customer_id
where orders.amount >= ${least}
group by orders.day, customers.country
