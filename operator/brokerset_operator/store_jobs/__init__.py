"""Jobs on brokers' store files, as StoreAudits and StoreMigrations want them; decides, touches nothing."""
